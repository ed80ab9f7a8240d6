"""Image files as patches of pixels, by the recipe of a package's manifest (`processor`).

`sources` takes the images out of messages, `decode` reads a file with Pillow, `sizes` and `patches`
follow the recipe, and `placeholders` writes the tokens of images into the text of a prompt. What
patches mean to a model is not known here.
"""
