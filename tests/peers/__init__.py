"""HTTP/2 and gRPC peers of all tests: frames, clients, and servers that answer as a test says.

`wire` builds and reads frames. `blocking` is one end of a connection on a blocking socket, and a client;
`scripted_server` is the server's end, in threads (`threaded_server`). `aio` is the same in the test's
own event loop. `load_client` counts calls at the least cost, for the bench. `bytes_client` is grpcio's
client, on bytes.
"""
