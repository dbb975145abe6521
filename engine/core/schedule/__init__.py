"""Scheduling: the rows of each step. Plain Python: knows no torch, no wire, no time of day."""

from continuo.engine.core.schedule.budget import StepLoad
from continuo.engine.core.schedule.scheduler import ScheduledRow, Scheduler, StepPlan
from continuo.engine.core.schedule.step_time_model import StepTimeModel

__all__ = ["ScheduledRow", "Scheduler", "StepLoad", "StepPlan", "StepTimeModel"]
