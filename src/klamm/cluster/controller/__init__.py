"""The controller: what an event does to the cluster, worked out without doing it.

Each function takes the image and an event or a command and returns a Change: the operations for the store,
and the delta of the image that they make; or it raises the KafkaError that the client is to see. Nothing here
waits, reads a clock or draws a random number: callers pass topic ids and random numbers in.

A leader epoch rises with every change of leadership, and a partition epoch with every change of the partition
at all: it is the version of the node that holds the partition's state.
"""
