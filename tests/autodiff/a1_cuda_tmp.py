import sys, time, traceback; sys.path.insert(0,'.')
import torch, weft
from tests.autodiff import kernels as k
torch.manual_seed(0)
def draw(*s): return torch.randn(s,dtype=torch.float64,device='cuda')
import tests.autodiff.test_gradients as T
T.draw=draw; T.INDICES=T.INDICES.cuda()
for n in T.CASES:
    try:
        kern,args=T.made(n)
        args=[a.cuda() if isinstance(a,torch.Tensor) and not a.is_cuda else a for a in args]
        print(n, torch.autograd.gradcheck(lambda *a: kern(*a), args), flush=True)
    except Exception as e:
        print(n,'FAILED',type(e).__name__,str(e)[:300], flush=True)
B,C,Tt=32,768,768
w=torch.randn(C,Tt,device='cuda',requires_grad=True); x=torch.randn(B,C,Tt,device='cuda',requires_grad=True)
torch.cuda.synchronize(); t=time.perf_counter(); y=k.conv(w,x,0.1); torch.cuda.synchronize(); print('first fwd ms',(time.perf_counter()-t)*1e3)
g=torch.randn_like(y)
t=time.perf_counter(); y.backward(g); torch.cuda.synchronize(); print('first bwd ms',(time.perf_counter()-t)*1e3)
ts=[]
for _ in range(10):
    w.grad=x.grad=None
    y=k.conv(w,x,0.1); torch.cuda.synchronize(); t=time.perf_counter(); y.backward(g); torch.cuda.synchronize(); ts.append(time.perf_counter()-t)
print('bwd ms',min(ts)*1e3)
