// The distance in kilometres between two places on a sphere of the Earth's size, given in degrees.
//
// Compiled to haversine.ptx with NVRTC 12.2:
//   --gpu-architecture=compute_70 -default-device --relocatable-device-code=true
extern "C" __device__ __noinline__ double haversine(double lat1, double lon1, double lat2, double lon2) {
  const double radian = 0.017453292519943295;
  double up = sin((lat2 - lat1) * radian / 2), along = sin((lon2 - lon1) * radian / 2);
  double h = up * up + cos(lat1 * radian) * cos(lat2 * radian) * along * along;
  return 2 * 6371.0088 * asin(sqrt(fmin(h, 1.0)));
}
