"""Every response format: what is rendered is read back."""

import pytest

from spa.prompts.formats import FORMATS
from spa.prompts.parse import parse_reply
from spa.prompts.render import chosen_plan, plan_sentence, world_model_reply
from spa.types import ResponseFormat


@pytest.mark.parametrize("order", FORMATS)
def test_what_is_rendered_is_read_back(order: ResponseFormat):
    spec = FORMATS[order]
    plan = f" {plan_sentence(['Left', 'Up'])} "
    thoughts = chosen_plan(["Left", "Up"], "after") if spec.lists_plans else plan
    text = world_model_reply("now", thoughts, "after", "Left || Up", order=order)
    reply = parse_reply(text, mode="add_worldmodel", order=order)
    assert reply.well_formed
    assert reply.observation == "now"
    assert reply.prediction == ("after" if spec.predicts else None)
    assert reply.actions == ("Left", "Up")
    assert reply.options == (((("Left", "Up"), "after"),) if spec.lists_plans else ())
