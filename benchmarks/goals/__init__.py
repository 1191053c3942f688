"""The goals that the native kernels are held to, each measured beside what it is compared with.

    python -m benchmarks.goals                        measure all, print the table
    python -m benchmarks.goals --write                and store results/goals.json, fill the page
    python -m benchmarks.goals --only decoding --pairs 5     a quick look at some of them
    python -m benchmarks.goals --threads 1 --clock cpu       on a machine that does other work

A figure is a ratio of two times taken one after the other, in turn, in one process with the same
threads, after the results were compared; of the pairs (21 unless said) the median and the quartiles
are given. A goal counts as missed when the upper quartile is below it, or for a cost the lower
quartile above it. What the machine can do is measured beside each point; a point during which the
threads together did less than 95 % of what each does alone was disturbed, and is measured again.
"""
