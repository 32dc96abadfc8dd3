"""The test of guards in kernels of operators (``boxed.py``), as LLVM IR."""

# Asks CPython whether guards hold. A table is the number of steps, and four words for each: its
# kind, where (a dict or an object), a name, and the object that is there.
ITEM, MISSING, ATTRIBUTE = range(3)
GUARDS = f"""
declare i32 @PyGILState_Ensure()
declare void @PyGILState_Release(i32)
declare ptr @PyDict_GetItemWithError(ptr, ptr)
declare ptr @PyObject_GetAttr(ptr, ptr)
declare void @Py_DecRef(ptr)
declare void @PyErr_Clear()

define internal i1 @guards(ptr %table) nounwind {{
entry:
  %count = load i64, ptr %table
  %first = getelementptr i64, ptr %table, i64 1
  %state = call i32 @PyGILState_Ensure()
  br label %each
each:
  %k = phi i64 [ 0, %entry ], [ %next, %same ]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %step, label %end
step:
  %at = getelementptr [4 x ptr], ptr %first, i64 %k
  %kind = load i64, ptr %at
  %p1 = getelementptr ptr, ptr %at, i64 1
  %p2 = getelementptr ptr, ptr %at, i64 2
  %p3 = getelementptr ptr, ptr %at, i64 3
  %owner = load ptr, ptr %p1
  %name = load ptr, ptr %p2
  %wanted = load ptr, ptr %p3
  %attribute = icmp eq i64 %kind, {ATTRIBUTE}
  br i1 %attribute, label %ask, label %look
look:
  %item = call ptr @PyDict_GetItemWithError(ptr %owner, ptr %name)
  %nothing = icmp eq i64 %kind, {MISSING}
  %empty = icmp eq ptr %item, null
  %absent = and i1 %nothing, %empty
  %there = icmp eq ptr %item, %wanted
  %fits = or i1 %absent, %there
  br i1 %fits, label %same, label %no
ask:
  %held = call ptr @PyObject_GetAttr(ptr %owner, ptr %name)
  %none = icmp eq ptr %held, null
  br i1 %none, label %no, label %drop
drop:
  call void @Py_DecRef(ptr %held)
  %equal = icmp eq ptr %held, %wanted
  br i1 %equal, label %same, label %no
same:
  %next = add i64 %k, 1
  br label %each
no:
  call void @PyErr_Clear()
  br label %end
end:
  %holds = phi i1 [ true, %each ], [ false, %no ]
  call void @PyGILState_Release(i32 %state)
  ret i1 %holds
}}
"""
