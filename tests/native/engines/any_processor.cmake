# Included by project(): check_engines and a native module that run every engine of x86 on a processor with AVX2, FMA and
# F16C. The targets are there at the end.
set(here "${CMAKE_CURRENT_LIST_DIR}")
function(elmo_fast_any_processor)
  # Where the instructions for products of bytes are not there either, their levels have those of the level below.
  set_property(TARGET engine_avx_vnni PROPERTY COMPILE_OPTIONS -ffp-contract=off -mavx2 -mfma)
  foreach(name avx512 avx512_vnni avx512_bf16 amx)
    set_property(TARGET engine_${name} PROPERTY COMPILE_OPTIONS -ffp-contract=off -Wno-psabi -Wno-ignored-attributes -mavx2 -mfma -mf16c
                 -include "${here}/avx512_in_vectors.h")
  endforeach()
  foreach(target check_engines _native)
    if(TARGET ${target})
      target_sources(${target} PRIVATE "${here}/any_processor.cpp")
      target_link_options(${target} PRIVATE -Wl,--wrap=_ZN9elmo_fast15cpu_feature_setEv
                          -Wl,--wrap=_ZN9elmo_fast13amx_permittedEv)
    endif()
  endforeach()
endfunction()
cmake_language(DEFER CALL elmo_fast_any_processor)
