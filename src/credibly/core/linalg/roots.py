"""Roots of small matrices that may be singular."""

import torch
from torch import Tensor

__all__ = ["root_of"]


def root_of(matrices: Tensor) -> Tensor:
    """L with L L' the positive semi-definite matrices, (..., C, C): by Cholesky, to the rounding of the matrices.

    A singular matrix is moved by a few units in the last place of its largest entry; one for which that is not enough
    is decomposed into eigenvectors.
    """
    if matrices.shape[-1] == 1:
        return matrices.clamp(min=0).sqrt()
    largest = matrices.diagonal(dim1=-2, dim2=-1).amax(-1)
    shift = largest * (matrices.shape[-1] * 4 * torch.finfo(matrices.dtype).eps)
    eye = torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(matrices + shift[..., None, None] * eye)
    wrong = failed != 0
    if bool(wrong.any()):
        values, vectors = torch.linalg.eigh(matrices[wrong])
        factor[wrong] = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
    return factor
