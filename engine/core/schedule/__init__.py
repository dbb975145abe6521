"""Scheduling: the choice of the rows of each step. Plain Python, independent of torch, link and
clock."""

from continuo.engine.core.schedule.budget import StepLoad
from continuo.engine.core.schedule.scheduler import ScheduledRow, Scheduler, StepPlan
from continuo.engine.core.schedule.step_time_model import StepTimeModel

__all__ = ["ScheduledRow", "Scheduler", "StepLoad", "StepPlan", "StepTimeModel"]
