"""`flashinfer-perf bisect`: find the commit or the release in which a case became slower, faster or wrong."""
