"""Questions (*.yaml) and the substrates they are asked on (profiles/*.yaml). `bench cp NAME .` copies one to edit."""
