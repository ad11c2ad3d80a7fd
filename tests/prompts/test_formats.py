"""Every response format: what is rendered is read back."""

import pytest

from spa.formats.plans import chosen_plan, plan_sentence
from spa.formats.registry import format_of, parse_response, world_model_response
from spa.plugins import response_formats


@pytest.mark.parametrize("order", response_formats())
def test_what_is_rendered_is_read_back(order: str):
    spec = format_of(order)
    plan = f" {plan_sentence(['Left', 'Up'])} "
    thoughts = chosen_plan(["Left", "Up"], "after") if spec.plans(2) else plan
    text = world_model_response("now", thoughts, "after", "Left || Up", order=order)
    response = parse_response(text, mode="add_worldmodel", order=order)
    assert response.well_formed
    assert response.observation == "now"
    assert response.prediction == ("after" if spec.predicts else None)
    assert response.actions == ("Left", "Up")
    assert response.options == (((("Left", "Up"), "after"),) if spec.plans(2) else ())
