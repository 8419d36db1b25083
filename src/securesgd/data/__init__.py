"""Data sets: embedded digits, MNIST, Fashion-MNIST, CIFAR-10 and the user's own; pixels in [0, 1], the split recorded.

    catalog     what each named data set is, where it comes from and its checksums
    fetch       bring one to this machine, from the first place that works, verified
    load        read one, or a .npz file, or a folder of images, or torch Datasets, as tensors

Importing this package, `catalog` or `fetch` does not load torch; `load` does.
"""
