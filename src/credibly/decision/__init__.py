"""Decisions: what to do with a prediction, given what acts cost, and when to do nothing."""

from credibly.decision.abstention import Abstention, abstain, defer, expert_confusion
from credibly.decision.bayes_act import Decisions, bayes_act
from credibly.decision.cost_uncertainty import CostUncertainty, cost_uncertainty, expected_cost_draws
from credibly.decision.costs import expected_costs, incurred_costs
from credibly.decision.grid_act import GridDecisions, grid_act, newsvendor_act
from credibly.decision.selective import SelectivePredictor, SelectiveRisk

__all__ = [
    "Abstention",
    "CostUncertainty",
    "Decisions",
    "GridDecisions",
    "SelectivePredictor",
    "SelectiveRisk",
    "abstain",
    "bayes_act",
    "cost_uncertainty",
    "defer",
    "expected_cost_draws",
    "expected_costs",
    "expert_confusion",
    "grid_act",
    "incurred_costs",
    "newsvendor_act",
]
