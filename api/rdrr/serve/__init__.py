"""`rdrr serve`: a loaded package behind the HTTP interfaces that programs expect.

    app                the routes, and the responses to their errors
    openai             OpenAI's completions and chats: the form of their answers
    responses          OpenAI's responses, which may be stored
    anthropic          Anthropic's messages
    ollama             Ollama's routes
    scoring            embeddings, ranking and classification
    chats              a chat of any of them: its prompt, and the parts of its answers
    infill             the text between two others
    packages           what a server is started with, as a pool
    pool               the packages: loaded on demand, unloaded for others
    ray                replicas of a server on a Ray cluster; it imports any of the others
    tools              what a template reads about tools, and the form of a forced call
    response_requests  what a request for a response says, as a chat
    texts              the texts of a request: jobs for the worker, and their events
    requests           what a request may say, checked; a chat is what the others become
    sse                streams of events
    guards             keys, hosts and sizes, checked before a request is read
    metrics            what /metrics counts
    worker             the thread that owns the model: it takes jobs, and loads the model again
    lanes              how jobs share the model: in passes together, or one after the other
    jobs               a prompt, how it is continued, and where its text goes

A module imports only modules below it in this list. HTTP never waits for the model: a route hands
jobs to the worker and reads their events from a queue of the event loop.
"""
