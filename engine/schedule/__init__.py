"""Who runs next, and how much of it. Plain Python: knows no torch, no wire, no time of day."""

from engine.schedule.budget import Load, StepTime
from engine.schedule.scheduler import Plan, Scheduler, Work

__all__ = ["Load", "Plan", "Scheduler", "StepTime", "Work"]
