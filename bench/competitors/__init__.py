"""The processes of competitors, which `targets.competitor_target` starts. They import only the
standard library and what the environment of the competitor has."""
