"""Gymnasium environments and the surfaces they live on."""
