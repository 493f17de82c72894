{
  lib,
  python3Packages,
}:
let
  project = (lib.importTOML ./pyproject.toml).project;
  python = python3Packages;
in
python.buildPythonApplication {
  pname = "llmgw-agent";
  inherit (project) version;
  pyproject = true;

  # What is built from, and nothing else: editing a README rebuilds nothing.
  src = lib.fileset.toSource {
    root = ./.;
    fileset = lib.fileset.unions [
      ./llmgw
      ./pyproject.toml
      ./tests
      (lib.fileset.maybeMissing ./README.md)
      (lib.fileset.maybeMissing ./docs)
    ];
  };

  build-system = [ python.setuptools ];
  # What the agent needs, and what the control plane, hf:// names, tracing and the tables of the command line do.
  dependencies = with python; [
    anyio
    cryptography
    httpx
    msgspec
    nvidia-ml-py # patched by nixpkgs to find the driver below /run/opengl-driver
    prometheus-client
    psutil
    pyyaml
    aiohttp
    h2
    huggingface-hub
    opentelemetry-exporter-otlp-proto-http
    opentelemetry-sdk
    pydantic
    rich
  ];

  # The last step before an engine, as a program: one argument is all that a #! line can carry.
  postInstall = ''
    mkdir -p $out/libexec
    {
      echo '#!${python.python.interpreter} -IS'
      cat $out/${python.python.sitePackages}/llmgw/supervisor/exec.py
    } > $out/libexec/llmgw-exec
    chmod +x $out/libexec/llmgw-exec
  '';

  nativeCheckInputs = with python; [
    blockbuster
    hypothesis
    pytestCheckHook
    pytest-timeout
    pytest-xdist
  ];
  # The quick ones that need neither a network namespace nor a program from outside; the whole suite is `make test`.
  enabledTestPaths = [
    "tests/config"
    "tests/test_aio.py"
    "tests/test_backoff.py"
    "tests/test_wire.py"
  ];
  pythonImportsCheck = [ "llmgw.__main__" ];

  meta = {
    inherit (project) description;
    homepage = "https://github.com/llmgw/llmgw";
    license = lib.licenses.asl20;
    platforms = lib.platforms.linux;
    mainProgram = "llmgw";
  };
}
