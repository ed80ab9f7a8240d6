"""Text around token ids: tokenizers, chat templates, grammars, files of sessions."""
