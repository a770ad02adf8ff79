"""Test that routers hear of first tokens at the end of a request, as in the records."""

from fairbench.sim.run import Simulation
from tests.sim.sim_helpers import small_spec


def test_a_router_learns_every_first_token_immediately_before_the_end():
    spec = small_spec("preble", "chat", dp=2, flags={"num_programs": 4, "request_rate": 50.0})
    simulation = Simulation(spec, spec.client_plans(), spec.source())
    router, heard, open_requests = simulation.router, {}, []
    told_first, told_end = router.on_first_token, router.on_finish

    def on_first_token(request, worker, at_s):
        heard[request.request_id] = (worker, at_s)
        open_requests.append(request.request_id)
        told_first(request, worker, at_s)

    def on_finish(request, worker, output, now_s):
        assert open_requests.pop() == request.request_id
        assert heard[request.request_id][1] <= now_s
        told_end(request, worker, output, now_s)

    router.on_first_token, router.on_finish = on_first_token, on_finish
    assert simulation.run()
    rows = simulation.result(True, None).requests
    columns = zip(rows["request_id"], rows["worker"], rows["first_token_s"], strict=True)
    recorded = {int(number): (int(worker), float(at_s)) for number, worker, at_s in columns}
    assert len(recorded) > 10
    assert heard == recorded
