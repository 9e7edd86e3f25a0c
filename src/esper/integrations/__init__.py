"""Growth inside the frameworks that people train with. Each module needs the library it is for, which is an extra of the same name."""
