# Included by project(); the target is there at the end.
cmake_language(DEFER CALL target_sources _native PRIVATE tests/native/trapped.cpp)
cmake_language(DEFER CALL target_link_options _native PRIVATE -Wl,--wrap=_ZN9elmo_fast3cpu7cpu_isaEv)
