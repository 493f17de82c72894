# a build that comes as a package
{ pkgs, ... }:
{
  services.llmgw-agent.engines.packages.llamacpp-cuda = {
    engine = "llamacpp";
    package = pkgs.llmgw-agent;
  };
}
