"""Data sets: embedded digits, MNIST, Fashion-MNIST, CIFAR-10 and the user's own; pixels in [0, 1], the split recorded.

    catalog     the table of named data sets: what each is, where it comes from and its checksums
    fetch       download one to this machine, from the first place that works, verified
    load        read one, or a .npz file, a folder of images, torch Datasets or a function's arrays, as tensors

Use these three; the other modules are theirs. Importing this package, `catalog` or `fetch` does not load torch; `load`
does.
"""
