def pytest_configure(config):
    config.addinivalue_line("markers", "rows: cases of softmax, a routine of one's own")
