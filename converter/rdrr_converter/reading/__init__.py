"""From a checkpoint to a model: its architecture, its tensors by name and shape, its heads."""
