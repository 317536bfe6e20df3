"""The transparent-proxy conformance list: each test carries the numbers of the items that it covers.

Almost all of it goes through the real daemon in a process of its own, to the fake runtime or to a small
server of the test's; where a test has to hold time or a decision in its hands, the relay runs in this
process.
"""
