"""Who runs next, and how much of it. Plain Python: knows no torch, no wire, no time of day."""

from continuo.engine.core.schedule.budget import Load
from continuo.engine.core.schedule.scheduler import Plan, Scheduler, Work
from continuo.engine.core.schedule.step_time_model import StepTime

__all__ = ["Load", "Plan", "Scheduler", "StepTime", "Work"]
