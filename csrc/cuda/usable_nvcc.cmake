# elmo_fast_usable_nvcc(REASON): sets ELMO_FAST_NVCC, and REASON to the empty string if the CUDA kernels can be built,
# else to why not. An nvcc that is old, broken or rejects the host compiler is a reason and does not fail the build.
set(elmo_fast_oldest_nvcc 12.1)  # the first with st.async

function(elmo_fast_usable_nvcc reason)
  find_program(ELMO_FAST_NVIDIA_SMI nvidia-smi)  # comes with the driver
  find_program(ELMO_FAST_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin PATHS /usr/local/cuda/bin)
  set(why "")
  if(NOT ELMO_FAST_CUDA)
    set(why "the build leaves them out (ELMO_FAST_CUDA=${ELMO_FAST_CUDA})")
  elseif(ELMO_FAST_CUDA STREQUAL "AUTO" AND NOT ELMO_FAST_NVIDIA_SMI)
    set(why "nvidia-smi was not found, so no NVIDIA driver (ELMO_FAST_CUDA=ON builds them all the same)")
  elseif(NOT ELMO_FAST_NVCC)
    set(why "nvcc was not found")
  else()
    elmo_fast_nvcc(said last --version)
    if(last)
      set(why "${ELMO_FAST_NVCC} does not run: ${last}")
    elseif(NOT said MATCHES "release ([0-9]+\\.[0-9]+)")
      set(why "${ELMO_FAST_NVCC} --version names no release")
    elseif(CMAKE_MATCH_1 VERSION_LESS elmo_fast_oldest_nvcc)
      set(why "nvcc ${elmo_fast_oldest_nvcc} or newer is needed, and ${ELMO_FAST_NVCC} is ${CMAKE_MATCH_1}")
    else()
      elmo_fast_try_nvcc(why)
    endif()
  endif()
  # keep only characters that a compile definition accepts
  string(REGEX REPLACE "[^A-Za-z0-9 _./:,()'+=@~-]" " " why "${why}")
  set(${reason} "${why}" PARENT_SCOPE)
endfunction()

# Compiles and links a small program with the kernels' flags. Sets REASON if that fails.
function(elmo_fast_try_nvcc reason)
  set(folder "${CMAKE_BINARY_DIR}/nvcc_trial")
  separate_arguments(flags UNIX_COMMAND "$ENV{CUDAFLAGS} ${CMAKE_CUDA_FLAGS}")
  set(host ${CMAKE_CUDA_HOST_COMPILER} $ENV{CUDAHOSTCXX})
  if(host)
    list(GET host 0 host)
    list(APPEND flags -ccbin "${host}")
  endif()
  file(WRITE "${folder}/trial.cu" "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n#include <cuda_runtime.h>\n"
       "__global__ void trial(__half* x, __nv_bfloat16* y) { *x = __float2half(float(*y)); }\n"
       "int main() { trial<<<1, 1>>>(nullptr, nullptr); return int(cudaDeviceSynchronize()); }\n")
  elmo_fast_nvcc(said last -std=c++17 -fmad=false -gencode=arch=compute_80,code=[compute_80,sm_80]
                 -gencode=arch=compute_90a,code=sm_90a -gencode=arch=compute_90,code=compute_90
                 ${flags} "${folder}/trial.cu" -o "${folder}/trial")
  if(last)
    set(${reason} "${ELMO_FAST_NVCC} cannot compile a small kernel: ${last}" PARENT_SCOPE)
  endif()
endfunction()

# Runs nvcc. SAID: its output; LAST: empty if it succeeded, else the first line with `error` in it, or the last line.
function(elmo_fast_nvcc said last)
  execute_process(COMMAND "${ELMO_FAST_NVCC}" ${ARGN} WORKING_DIRECTORY "${CMAKE_BINARY_DIR}" RESULT_VARIABLE failed
                  OUTPUT_VARIABLE printed ERROR_VARIABLE printed)
  set(${said} "${printed}" PARENT_SCOPE)
  set(found "")
  if(failed)
    string(REPLACE ";" "," printed "it printed nothing\n${printed}")
    string(STRIP "${printed}" printed)
    string(REGEX MATCH "[^\n]*error[^\n]*|[^\n]*$" found "${printed}")
    string(SUBSTRING "${found}" 0 200 found)
    string(STRIP "${found}" found)
  endif()
  set(${last} "${found}" PARENT_SCOPE)
endfunction()
