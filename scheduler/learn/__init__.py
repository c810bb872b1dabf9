"""The learned policies: ``dl2`` as its paper has it, and ``dl2x``, the default. The only part that imports torch."""
