"""Every frozen record that flows between the stages. Read first."""
