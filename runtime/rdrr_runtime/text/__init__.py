"""Everything between text and token ids: tokenizers, chat templates, grammars and session files."""
