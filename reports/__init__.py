"""What the records of a sweep say: statistics, figures, pages. Reads records; needs no GPU, tracker or network."""
