"""Who may be seen, lowered to tensors of one size: what a mask is once Tq and Tk are known."""

from eyeline.visibility.lowered import Visible

__all__ = ["Visible"]
