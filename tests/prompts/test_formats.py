"""Every response format: what is rendered is read back."""

import pytest

from spa.formats.plans import chosen_plan, plan_sentence
from spa.formats.registry import format_of, formats, parse_reply, world_model_reply


@pytest.mark.parametrize("order", formats())
def test_what_is_rendered_is_read_back(order: str):
    spec = format_of(order)
    plan = f" {plan_sentence(['Left', 'Up'])} "
    thoughts = chosen_plan(["Left", "Up"], "after") if spec.lists_plans else plan
    text = world_model_reply("now", thoughts, "after", "Left || Up", order=order)
    reply = parse_reply(text, mode="add_worldmodel", order=order)
    assert reply.well_formed
    assert reply.observation == "now"
    assert reply.prediction == ("after" if spec.predicts else None)
    assert reply.actions == ("Left", "Up")
    assert reply.options == (((("Left", "Up"), "after"),) if spec.lists_plans else ())
