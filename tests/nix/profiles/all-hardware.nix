# What the image imports of NixOS: drivers, which nobody looks at here.
{ }
