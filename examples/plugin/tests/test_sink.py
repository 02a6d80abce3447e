from sparsenmt_sink import Sink

from sparsenmt.testing import method_checks

test_sink = method_checks(Sink)
