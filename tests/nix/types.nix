# The stand-in's option types: a check, the words a refusal shows, and how definitions are merged.
{ lib }:
let
  inherit (builtins) all attrNames concatMap elem filter head isAttrs isBool isFloat isInt isList isString match substring;
  modules = import ./modules.nix { inherit lib; };

  one = path: values:
    if all (v: v == head values) values then head values
    else throw "The option `${path}' has conflicting definition values.";
  type = description: check: { inherit description check; merge = one; options = null; };

  inStore = x: lib.hasPrefix "${builtins.storeDir}/" (toString x);
  isPath = x: builtins.isPath x || (isString x && substring 0 1 x == "/");
in
rec {
  bool = type "boolean" isBool;
  int = type "signed integer" isInt;
  number = type "signed integer or floating point number" (x: isInt x || isFloat x);
  str = type "string" isString;
  nonEmptyStr = type "non-empty string" (x: isString x && match "[ \t\n]*" x == null);
  strMatching = pattern: type "string matching the pattern ${pattern}" (x: isString x && match pattern x != null);
  port = addCheck int (x: x >= 0 && x <= 65535) // { description = "16 bit unsigned integer"; };
  ints.unsigned = addCheck int (x: x >= 0) // { description = "unsigned integer"; };
  path = type "absolute path" (x: isPath x || lib.isDerivation x);
  externalPath = type "absolute path not in the Nix store" (x: isString x && isPath x && !inStore x);
  package = type "package" (x: lib.isDerivation x) // { merge = _: head; };
  enum = values: type "one of ${lib.concatMapStringsSep ", " builtins.toJSON values}" (x: elem x values);
  attrs = type "attribute set" isAttrs // { merge = _: builtins.foldl' (a: b: a // b) { }; };

  addCheck = t: more: t // { check = x: t.check x && more x; };

  nullOr = t: type "null or ${t.description}" (x: x == null || t.check x) // {
    merge = path: values: if all (v: v == null) values then null else t.merge path (filter (v: v != null) values);
    inherit (t) options;
    below = t.below or [ ];
  };
  oneOf = ts: type (lib.concatMapStringsSep " or " (t: t.description) ts) (x: lib.any (t: t.check x) ts) // {
    merge = path: values: (head (filter (t: all t.check values) ts)).merge path values;
  };
  either = a: b: oneOf [ a b ];
  listOf = t: type "list of ${t.description}" isList // {
    merge = path: values: lib.imap0 (i: v: modules.typed t "${path}.${toString i}" [ v ]) (builtins.concatLists values);
    inherit (t) options;
    below = [ "*" ];
  };
  attrsOf = t: type "attribute set of ${t.description}" isAttrs // {
    merge = path: values: lib.genAttrs (lib.unique (concatMap attrNames values))
      (name: modules.typed t "${path}.${name}" (concatMap (v: lib.optional (v ? ${name}) v.${name}) values));
    inherit (t) options;
    below = [ "<name>" ];
  };
  submodule = module: type "submodule" isAttrs // {
    merge = path: values: (modules.evalModules { modules = [ module ] ++ values; prefix = path; }).config;
    options = (modules.evalModules { modules = [ module ]; }).options;
  };
}
