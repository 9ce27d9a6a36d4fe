import os
def import_mujoco():
    os.environ.setdefault('MUJOCO_GL','egl')
    import mujoco
    return mujoco
