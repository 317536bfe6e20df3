"""Numbers of metrics."""

from concurrent.futures import ThreadPoolExecutor

from runtimeproxy.counts import Counts, Histogram


def test_a_value_counts_in_the_range_whose_upper_bound_it_does_not_pass() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 2.0, 7.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.total == 11.5


def test_no_number_of_any_thread_is_lost() -> None:
    counts: Counts[str] = Counts()

    def work() -> None:
        for key in "ab" * 500:
            counts.add(key, 2)

    with ThreadPoolExecutor(4) as threads:
        for _ in range(4):
            threads.submit(work)
    copy = counts.read()
    counts.add("a")
    assert copy == {"a": 4000, "b": 4000}
