# An adapter is found and named by its fabric, its port's state followed; a bad link is survived.
{ fleet }:
fleet.test {
  name = "fabric";
  lite = "RDMA devices and delays are a kernel's own";
  nodes = {
    agent1 = fleet.agent {
      settings = {
        servers = [ "cp1:7443" ];
        # an emulated processor takes its time for a look
        discovery = { interval = "10s"; probe_timeout = "30s"; };
        fabrics = [ { name = "fab0"; hcas = [ "rxe0" ]; } ];
      };
      config = {
        virtualisation.vlans = [ 1 3 ];
        boot.kernelModules = [ "rdma_rxe" "sch_netem" ];
      };
    };
    cp1 = fleet.controlPlane { role = "leader 1"; config.services.llmgw-control.desired.agent1 = [ (fleet.engine "chat-0") ]; };
  };
  script = ./fabric.py;
}
