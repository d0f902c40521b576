"""Speech: spectra, noises, measures of quality, a generator of speech-like sound, and a network that removes noise."""
