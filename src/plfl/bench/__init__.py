"""Speed beside other systems that do the same work, and beside what the machine can do: `plfl
bench`.
"""
