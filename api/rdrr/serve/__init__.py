"""`rdrr serve`: a loaded package behind the HTTP interfaces that programs expect.

    app        the routes, and the responses to their errors
    openai     what the routes for text read, and the form of their answers
    texts      the texts of a request: jobs for the worker, and their events
    requests   what a request may say, checked
    guards     keys, hosts and sizes, checked before a request is read
    metrics    what /metrics counts
    worker     the thread that owns the model: it runs all jobs, and loads the model again
    jobs       a prompt, how it is continued, and where its text goes

A module imports only modules below it in this list. HTTP never waits for the model: a route hands
jobs to the worker and reads their events from a queue of the event loop.
"""
