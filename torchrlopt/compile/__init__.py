"""The torch.compile backend: the composer of all stages, the check, and the choice by measurement."""
