"""Shaders: the same scheduled IR as text of WGSL (WebGPU) or of the Metal Shading Language.

``expand`` writes functions out as arithmetic, so that their accuracy does not depend on a driver;
``printer`` walks the structured IR and prints statements (``writer``: lines and names), ``rules``
expressions and ``memory`` accesses; ``dialects`` has what the two languages spell differently;
``emit`` puts a module together.
"""
