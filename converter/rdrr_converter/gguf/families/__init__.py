"""What llama.cpp fixes or names differently for a family."""
