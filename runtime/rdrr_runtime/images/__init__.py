"""Image files as patches of pixels, by the recipe of a package's manifest (`processor`).

`sources` takes the images out of messages and reads data URLs and files, `decode` makes pixels of
a file with Pillow, `sizes` and `patches` follow the recipe, and `prompt` does all of it for the
images of a prompt. Their places in its text are filled by `text.image_places`. What patches mean to
a model is not known here.
"""
