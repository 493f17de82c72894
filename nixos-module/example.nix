# A node as an operator would write it; the flake's checks build its file, so it stays true.
{
  services.llmgw-agent = {
    enable = true;
    openFirewall = true;
    settings = {
      servers = [ "cp1.example:7443" "cp2.example:7443" ];
      tls = {
        cert_file = "/run/secrets/llmgw-node.crt";
        key_file = "/run/secrets/llmgw-node.key";
        ca_file = "/run/secrets/llmgw-ca.crt";
      };
      labels.rack = "r12";
      mgmt_interface = "enp65s0f0";
      fabrics = [ { name = "ib0"; hcas = [ "mlx5_0" "mlx5_1" ]; } ];
      model_dirs = [ "/models" ];
      engines.llamacpp.threads = 16;
    };
  };
}
